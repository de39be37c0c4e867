"""Masked words in sentences, with transformers' Trainer. Healthy: the step is the limit, without workers.

Shows: collating takes a few percent of each step. The model is validated after each epoch, on few sentences.
"""

# expected: healthy
# needs: transformers accelerate

import argparse
import random
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments, set_seed

PAD, CLS, SEP, MASK = range(4)
ARTICLES = ["the", "a", "this", "every", "no"]
NOUNS = ["dog", "cat", "river", "teacher", "engine", "child", "bird", "poem", "window", "storm"]
VERBS = ["sees", "likes", "follows", "ignores", "finds", "hears", "paints", "breaks"]
ENDINGS = ["today", "again", "slowly", "at night", "in the end", "with a smile", "for no reason"]
VOCABULARY = sorted({word for text in ARTICLES + NOUNS + VERBS + ENDINGS for word in text.split()})


class Sentences(Dataset):
    def __init__(self, size, seed):
        rng = random.Random(seed)
        ids = {word: number for number, word in enumerate(VOCABULARY, start=4)}
        self.examples = []
        for _ in range(size):
            words = []
            for _ in range(rng.randint(2, 6)):
                words += [rng.choice(ARTICLES), rng.choice(NOUNS), rng.choice(VERBS), rng.choice(ARTICLES)]
                words += [rng.choice(NOUNS), *rng.choice(ENDINGS).split()]
            self.examples.append([CLS, *(ids[word] for word in words), SEP])

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        return {"input_ids": self.examples[i]}


class MaskingCollator:
    """Pads to the longest sentence and hides 15 % of the words."""

    def __init__(self, probability=0.15):
        self.probability = probability

    def __call__(self, features):
        sequences = [torch.tensor(feature["input_ids"]) for feature in features]
        input_ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PAD)
        attention_mask = (input_ids != PAD).long()
        hidden = (torch.rand(input_ids.shape) < self.probability) & (input_ids > MASK)
        labels = input_ids.masked_fill(~hidden, -100)
        return {
            "input_ids": input_ids.masked_fill(hidden, MASK),
            "attention_mask": attention_mask,
            "labels": labels,
        }


class Throughput(TrainerCallback):
    def __init__(self, samples):
        self.samples = samples

    def on_epoch_begin(self, _args, _state, _control, **_kwargs):
        self.start = time.perf_counter()

    def on_epoch_end(self, _args, state, _control, **_kwargs):
        seconds = time.perf_counter() - self.start
        print(f"epoch {state.epoch:.1f}: {self.samples / seconds:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    cli = parser.parse_args()

    torch.set_num_threads(1)
    set_seed(51)
    train_dataset, eval_dataset = Sentences(768, seed=51), Sentences(48, seed=52)
    if cli.epochs == 0:
        return
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=len(VOCABULARY) + 4,
            hidden_size=144,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=576,
            max_position_embeddings=128,
        )
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(Path(cli.data) / "masked-sentences"),
            per_device_train_batch_size=cli.batch_size,
            per_device_eval_batch_size=cli.batch_size,
            num_train_epochs=cli.epochs,
            learning_rate=1e-3,
            eval_strategy="epoch",
            save_strategy="no",
            logging_strategy="epoch",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        data_collator=MaskingCollator(),
        callbacks=[Throughput(len(train_dataset))],
    )
    trainer.train()


if __name__ == "__main__":
    main()
