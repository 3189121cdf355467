# %% [markdown]
# # Serve with ONNX Runtime
#
# One ONNX file holds the network, the uncertainty and the decision. A FastAPI service runs it with
# ONNX Runtime: it needs neither torch nor qipf. In the end, a load test.

# %%
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from sklearn.datasets import load_digits
from torch import nn

import qipf

digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
inputs = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
labels = torch.tensor(digits.target)[order]

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(80):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(inputs[:800]), labels[:800]).backward()
    optimizer.step()

model = qipf.LayeredQIPF(net).fit([(inputs[:800], labels[:800])])
model.calibrate([(inputs[800:1400], labels[800:1400])])
rule = model.accept_rule(max_risk=0.05)

# %% [markdown]
# ## Export
#
# The file is run and compared with the model before it is written.

# %%
file = model.export_onnx("digits.onnx")
print(f"largest difference to PyTorch: {file.difference:.1e}")

# %% [markdown]
# ## The service
#
# The whole service: a session, a request, an answer. In a file `service.py` of its own it is
# started with `uvicorn service:app`.

# %%
import numpy as np
import onnxruntime
from fastapi import FastAPI
from pydantic import BaseModel

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1  # one core a request; the server runs several requests
session = onnxruntime.InferenceSession("digits.onnx", options)
OUTPUTS = ["logits", "uncertainty", "p_error", "novelty", "accepted"]
app = FastAPI()


class Batch(BaseModel):
    """Pixels of one or more images, from 0 to 1."""

    images: list[list[float]]


@app.post("/predict")
def predict(batch: Batch):
    """Class, uncertainty and decision of each image."""
    rows = np.array(batch.images, dtype=np.float32).reshape(-1, 64)
    logits, *scores = session.run(OUTPUTS, {"input": rows})
    table = zip(logits.argmax(1).tolist(), *(score.tolist() for score in scores), strict=True)
    return [dict(zip(["class", *OUTPUTS[1:]], row, strict=True)) for row in table]


# %% [markdown]
# ## A request
#
# The test client calls the service in this process, without a network.

# %%
from fastapi.testclient import TestClient

client = TestClient(app)
answer = client.post("/predict", json={"images": inputs[1400:1402].tolist()})
print(answer.status_code)
print(json.dumps(answer.json()[0], indent=2))

# %% [markdown]
# The answers are those of the model in PyTorch:

# %%
images = inputs[1400:]
answers = client.post("/predict", json={"images": images.tolist()}).json()
prediction = model(images)
served = torch.tensor([each["uncertainty"] for each in answers])
agreed = [each["accepted"] for each in answers] == prediction.accepted.tolist()
print(f"largest difference of the uncertainty: {(served - prediction.uncertainty).abs().max():.1e}")
print("same decisions:", agreed)

# %% [markdown]
# ## A load test
#
# 300 requests with one image each, by four clients at a time. Times are those of the machine that
# built this page, and include the test client.


# %%
def timed(i):
    """Seconds of one request."""
    start = time.perf_counter()
    reply = client.post("/predict", json={"images": [images[i % len(images)].tolist()]})
    assert reply.status_code == 200
    return time.perf_counter() - start


begin = time.perf_counter()
with ThreadPoolExecutor(4) as clients:
    seconds = list(clients.map(timed, range(300)))
whole = time.perf_counter() - begin
cuts = statistics.quantiles(seconds, n=100)
print(f"{len(seconds) / whole:.0f} requests a second")
print(f"median {1e3 * cuts[49]:.1f} ms, 95 % within {1e3 * cuts[94]:.1f} ms")

# %% [markdown]
# The scores themselves take a small part of that. For 1 and 64 images:

# %%
for size in (1, 64):
    rows = images[:size].numpy()
    laps = []
    for _ in range(50):
        start = time.perf_counter()
        session.run(OUTPUTS, {"input": rows})
        laps.append(time.perf_counter() - start)
    print(f"{size:>3} images: {1e3 * statistics.median(laps):.2f} ms in ONNX Runtime")
