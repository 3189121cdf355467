import pytest

from qipf.bench.methods.dropout import MCDropout
from qipf.bench.methods.field import Field
from qipf.bench.networks import Recipe
from qipf.bench.options import checked_options
from qipf.errors import QIPFInputError


def test_values_take_the_kind_that_is_meant():
    given = checked_options("qipf", Field, {"orders": [1, 2], "bandwidth": 2, "softening": 0.1})
    assert given == {"orders": (1, 2), "bandwidth": 2.0, "softening": 0.1}
    assert isinstance(given["bandwidth"], float)
    assert checked_options("qipf", Field, {"bandwidth": "cv"}) == {"bandwidth": "cv"}
    assert checked_options("mc_dropout", MCDropout, {"rate": None}) == {"rate": None}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Recipe, {"epochs": 2.5}, "epochs of x must be a whole number; got 2.5."),
        (Recipe, {"epochs": True}, "epochs of x must be a whole number; got True."),
        (Recipe, {"learning_rate": "high"}, "learning_rate of x must be a number; got 'high'."),
        (Recipe, {"augment": 1}, "augment of x must be true or false; got 1."),
        (MCDropout, {"rate": "0.1"}, "rate of x must be a number or nothing; got '0.1'."),
        (Field, {"bandwidth": None}, "bandwidth of x must be a number or a text; got None."),
        (Field, {"orders": 4}, "orders of x must be a list of whole numbers; got 4."),
        (Field, {"orders": [1.5]}, "orders of x must be a list of whole numbers; got [1.5]."),
        (
            Recipe,
            {"epoch": 3},
            "Unknown option of x 'epoch'. Did you mean 'epochs'? "
            "Known: augment, batch_size, bfloat16, dropout_rate, epochs, learning_rate.",
        ),
        (
            Field,
            {"field_": None},
            "Unknown option of x 'field_'. Known: bandwidth, engine, max_centers, orders, "
            "reduction, softening.",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(make, options, message):
    with pytest.raises(QIPFInputError) as refused:
        checked_options("x", make, options)
    assert str(refused.value) == message
