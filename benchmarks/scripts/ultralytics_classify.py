"""Ultralytics: training and validation of a classifier on an image folder."""

import argparse

from ultralytics import YOLO


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder with train and val")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    model = YOLO("yolo11n-cls.yaml")

    def show(trainer) -> None:
        print("epoch", trainer.epoch, {name: float(loss) for name, loss in trainer.tloss.items()}, flush=True)

    model.add_callback("on_train_epoch_end", show)
    model.train(
        data=options.data,
        epochs=options.epochs,
        imgsz=64,
        batch=options.batch_size,
        workers=options.workers,
        device="cpu",
        pretrained=False,
        plots=False,
        save=False,
        verbose=False,
        project="runs",
        seed=0,
    )


if __name__ == "__main__":
    main()
