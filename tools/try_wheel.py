"""What must work where qipf is installed from its wheel alone; `make package` runs it.

It is also checked by mypy, as a user's code is, with the types that the wheel carries.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import qipf

assert qipf.__version__ == version("qipf")
assert Path(sys.prefix) in Path(qipf.__file__).parents, f"{qipf.__file__} is not the wheel's"
assert "matplotlib" not in sys.modules

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
inputs = torch.randn(900, 4)
labels = (inputs[:, :3] + 0.3 * torch.randn(900, 3)).argmax(1)
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
for _ in range(200):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(inputs[:400]), labels[:400]).backward()
    optimizer.step()
model = qipf.LayeredQIPF(net).fit([(inputs[:400], labels[:400])])
model.calibrate([(inputs[400:700], labels[400:700])])
assert_type(model.accept_rule(max_risk=0.3), qipf.AcceptRule)
assert_type(model.uncertainty(inputs[700:]), Tensor)
print(assert_type(model(inputs[700:]), qipf.Prediction))
with TemporaryDirectory() as folder:
    page = Path(folder) / "page.html"
    print(qipf.report(model, [(inputs[700:], labels[700:])], page))
    assert page.stat().st_size > 10_000  # with its templates, style and scripts
    model.save(Path(folder) / "model.qipf")
    assert torch.equal(
        qipf.load(Path(folder) / "model.qipf", net).uncertainty(inputs[:9]),
        model.uncertainty(inputs[:9]),
    )
try:
    model.plot_risk_coverage()
except qipf.QIPFError as error:
    assert "pip install 'qipf[report]'" in str(error)  # noqa: PT017
else:
    raise AssertionError("matplotlib is not a dependency")
