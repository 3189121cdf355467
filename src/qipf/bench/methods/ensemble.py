"""Deep ensembles: the same architecture from several random starts (Lakshminarayanan, 2017)."""

from dataclasses import dataclass

from qipf.bench.methods.network import predict
from qipf.bench.methods.protocol import Batch, CleanData, check_positive
from qipf.bench.methods.sampling import Draw, Sampler, Samples


@dataclass(frozen=True)
class Ensemble(Sampler):
    """`networks` trained like the deterministic network, which is not one of them."""

    networks: int = 10

    def __post_init__(self) -> None:
        check_positive("ensemble", networks=self.networks)

    @property
    def forward_passes(self) -> int:
        """Number of networks."""
        return self.networks

    def prepare(self, clean: CleanData) -> Draw:
        """Train the networks."""
        trainer = clean.trainer_for("ensemble")
        members = trainer.train_ensemble(clean.network, self.networks, clean.images, clean.labels)

        def draw(batch: Batch) -> Samples:
            drawn = (predict(member, batch.images).logits for member in members)
            return Samples.of(drawn, batch.predicted)

        return draw
