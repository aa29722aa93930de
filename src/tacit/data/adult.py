"""Adult (census income): whether a person earns more than 50,000 dollars, 32,561 + 16,281 rows.

B. Becker, R. Kohavi 1996, UCI, CC BY 4.0.
"""

from __future__ import annotations

import io
import os

from ..errors import BadData
from .federation import Dataset
from .recipe import Recipe
from .sources import Published, contents, folders
from .tables import from_frame

_PAGE = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
FILES = (
    Published(
        "adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        (_PAGE + "adult.data",),
    ),
    Published(
        "adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        (_PAGE + "adult.test",),
    ),
)
COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)


def adult(
    fit: str | Recipe = "federated",
    data_dir: str | os.PathLike[str] | None = None,
    verify: bool = True,
    download: bool = True,
) -> Dataset:
    """Adult (census income): whether a person earns more than 50,000 dollars.

    32,561 + 16,281 rows: the authors' training and test files, with missing values.
    The survey weight (fnlwgt) does not describe a person and is not a feature.
    """
    import pandas as pd

    frames = []
    for file, data in zip(FILES, contents("adult", FILES, folders("adult", data_dir), verify, download)):
        lines = b"\n".join(
            line for line in data.splitlines() if line and not line.startswith(b"|")
        )  # the test file begins with a comment
        try:
            frame = pd.read_csv(
                io.BytesIO(lines),
                header=None,
                names=COLUMNS,
                na_values="?",
                skipinitialspace=True,
                index_col=False,
            )
        except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
            raise BadData(f"adult: {file.name} cannot be read: {error}. Get the file again.") from None
        frames.append(
            frame.assign(income=frame["income"].astype(str).str.rstrip("."))
        )  # labels of the test file end in a dot
    return from_frame(frames[0], "income", test=frames[1], name="adult", drop=("fnlwgt",), fit=fit)
