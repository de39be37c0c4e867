"""Gestures in short videos. Bottleneck: it seeks each frame, and decodes what lies before it again.

Shows: the worker computes inside OpenCV's video decoder; the training process waits for it.
Fix: seek to the first frame only, then go on from there.
"""

# expected: decode
# names: capture.set | capture.read | read_clip | CAP_PROP_POS_FRAMES
# needs: cv2
# fix:
# -    for number in range(first, first + FRAMES * STRIDE, STRIDE):
# -        capture.set(cv2.CAP_PROP_POS_FRAMES, number)
# -        frames.append(capture.read()[1])
# +    capture.set(cv2.CAP_PROP_POS_FRAMES, first)
# +    for number in range(FRAMES * STRIDE):
# +        capture.grab()
# +        if number % STRIDE == 0:
# +            frames.append(capture.retrieve()[1])

import argparse
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VIDEOS, LENGTH, GESTURES = 12, 240, 4
WIDTH, HEIGHT = 160, 120
FRAMES, STRIDE = 8, 2
CLIPS = 256


def record(folder):
    """A hand (a disc) that moves up, down, left or right over a background, time and again."""
    folder.mkdir()
    rng = np.random.default_rng(41)
    directions = [(0, -3), (0, 3), (-3, 0), (3, 0)]
    for number in range(VIDEOS):
        name = str(folder / f"{number:02}-{number % GESTURES}.mp4")
        writer = cv2.VideoWriter(name, cv2.VideoWriter_fourcc(*"mp4v"), 25, (WIDTH, HEIGHT))
        background = cv2.GaussianBlur(rng.integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8), (0, 0), 2)
        right, down = directions[number % GESTURES]
        x, y = rng.integers(WIDTH), rng.integers(HEIGHT)
        for _ in range(LENGTH):
            x, y = (x + right) % WIDTH, (y + down) % HEIGHT
            frame = cv2.circle(background.copy(), (int(x), int(y)), 14, (140, 170, 230), -1)
            writer.write(cv2.add(frame, rng.integers(0, 12, frame.shape, dtype=np.uint8)))
        writer.release()


def read_clip(path, first):
    capture = cv2.VideoCapture(str(path))
    frames = []
    for number in range(first, first + FRAMES * STRIDE, STRIDE):
        capture.set(cv2.CAP_PROP_POS_FRAMES, number)
        frames.append(capture.read()[1])
    capture.release()
    return frames


class Clips(Dataset):
    def __init__(self, folder):
        self.videos = sorted(folder.glob("*.mp4"))

    def __len__(self):
        return CLIPS

    def __getitem__(self, index):
        path = self.videos[index % len(self.videos)]
        first = np.random.randint(LENGTH - FRAMES * STRIDE - 1)
        frames = [cv2.resize(frame, (80, 60)) for frame in read_clip(path, first)]
        clip = torch.from_numpy(np.stack(frames)).permute(3, 0, 1, 2).float() / 255
        return clip, int(path.stem[-1])


class GestureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv3d(3, 16, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2)),
            nn.BatchNorm3d(16),
            nn.ReLU(inplace=True),
            nn.Conv3d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm3d(32),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool3d(1),
        )
        self.classifier = nn.Linear(32, GESTURES)

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


def init_worker(_worker_id):
    cv2.setNumThreads(0)
    np.random.seed(torch.initial_seed() % 2**32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    torch.set_num_threads(1)
    folder = Path(args.data) / "gestures"
    if not folder.exists():
        record(folder)
    loader = DataLoader(
        Clips(folder),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=1,
        worker_init_fn=init_worker,
        persistent_workers=True,
    )
    model = GestureNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    for epoch in range(args.epochs):
        model.train()
        tic = time.time()
        correct = total = 0
        for clips, labels in loader:
            outputs = model(clips)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (outputs.argmax(1) == labels).sum().item()
            total += labels.size(0)
        speed = total / (time.time() - tic)
        print(f"[{epoch + 1}/{args.epochs}] acc {correct / total:.3f}, {speed:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
