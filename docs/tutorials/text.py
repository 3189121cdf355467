# %% [markdown]
# # Text
#
# A small classifier of sentences, made here from words so that nothing is downloaded. Models of the
# `transformers` library are used the same way: their tokenizer's output is the batch.

# %%
import random

import torch
from torch import nn

import qipf

TOPICS = {
    "weather": "rain sun cloud wind storm snow warm cold sky forecast".split(),
    "kitchen": "soup bread salt oven knife butter onion recipe taste plate".split(),
    "travel": "train ticket station hotel map luggage flight bridge coast guide".split(),
}
COMMON = "the a and of with near after before today we they saw took some very nice".split()
WORDS = ["<pad>", "<unknown>", *COMMON, *(word for words in TOPICS.values() for word in words)]
NUMBERS = {word: i for i, word in enumerate(WORDS)}
chance = random.Random(0)


def sentence(topic):
    """Six to twelve words: some common, some of the topic, now and then one of another topic."""
    words = chance.choices(COMMON, k=chance.randint(4, 8))
    words += chance.choices(TOPICS[topic], k=chance.randint(1, 3))
    if chance.random() < 0.5:
        words.append(chance.choice(TOPICS[chance.choice(list(TOPICS))]))
    chance.shuffle(words)
    return " ".join(words)


def tokens(texts):
    """Numbers of the words, padded to the longest text, and a mask of what is no padding."""
    rows = [[NUMBERS.get(word, 1) for word in text.split()] for text in texts]
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def dataset(count):
    """Sentences and their topics."""
    labels = [chance.randrange(3) for _ in range(count)]
    return [sentence(list(TOPICS)[label]) for label in labels], torch.tensor(labels)


texts, labels = dataset(4)
for text, label in zip(texts, labels.tolist(), strict=True):
    print(f"{list(TOPICS)[label]:>8}: {text}")

# %% [markdown]
# ## The network
#
# Embeddings, their mean over the words of a text, and two dense layers.


# %%
class Reader(nn.Module):
    """Topic of a text."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 24, padding_idx=0)
        self.mixing = nn.Sequential(nn.Linear(24, 32), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, input_ids, attention_mask):
        """Logits (n, 3)."""
        mask = attention_mask[..., None].float()
        words = self.mixing(self.embedding(input_ids))
        return self.head((words * mask).sum(1) / mask.sum(1))


train_texts, train_labels = dataset(1200)
train = tokens(train_texts)
torch.manual_seed(0)
net = Reader()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(60):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(**train), train_labels).backward()
    optimizer.step()

# %% [markdown]
# ## Fit and calibrate
#
# Batches are dictionaries with the labels under `labels`. Integer inputs that an embedding reads
# are tokens: `fit` drops, swaps and replaces some of them, and adds noise to the embeddings, to see
# what errors look like. Padding is left out by the `attention_mask`.

# %%
model = qipf.LayeredQIPF(net).fit([{**train, "labels": train_labels}])
held_out_texts, held_out_labels = dataset(600)
model.calibrate([{**tokens(held_out_texts), "labels": held_out_labels}])
print(model.summary())

# %% [markdown]
# ## Decide
#
# Sentences about two topics are hard. The rule abstains from most of those that are wrong.

# %%
rule = model.accept_rule(max_risk=0.05)
new_texts, new_labels = dataset(500)
prediction = model(tokens(new_texts))
wrong = prediction.predicted != new_labels
print(rule)
print(f"wrong of all: {wrong.float().mean():.1%}")
print(f"wrong of the accepted: {wrong[prediction.accepted].float().mean():.1%}")

# %%
for i in prediction.uncertainty.argsort(descending=True)[:4].tolist():
    guess, true = (list(TOPICS)[int(x[i])] for x in (prediction.predicted, new_labels))
    print(f"p_error {prediction.p_error[i]:.2f}  {guess} (true: {true}): {new_texts[i]}")

# %% [markdown]
# ## Texts of another kind
#
# Words that the network has never seen: the p-value of the novelty is the share of held-out texts
# that are at least as novel.

# %%
strange = [
    "quantum flux of the reactor",
    "stock prices fell after the merger",
    "goal in extra time",
]
found = model(tokens(strange))
for text, error, novel in zip(strange, found.p_error, found.novelty_p_value, strict=True):
    print(f"p_error {error:.2f}, novelty p-value {novel:.3f}: {text}")
