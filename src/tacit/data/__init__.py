"""Data sets, and how their rows are partitioned across parties.

fed = data.digits().split(10, skew=data.Dirichlet(0.5), seed=0)
fed = data.from_csv("patients.csv", label="ill").by("hospital")
"""

from __future__ import annotations

from collections.abc import Callable

from .adult import adult
from .arrays import from_arrays
from .bundled import breast_cancer, digits, iris, wine
from .cifar10 import cifar10
from .federation import Dataset, Federation, Holdings, Rows
from .gaussian_blobs import gaussian_blobs
from .heart_disease import heart_disease
from .huggingface import from_huggingface
from .mnist import fashion_mnist, mnist
from .padding import pad
from .parquet_rows import from_parquet_files
from .pipeline import Pipeline
from .preparation import Preparation
from .recipe import Recipe
from .shakespeare import shakespeare
from .skews import (
    IID,
    SKEWS,
    ByColumn,
    ConceptDrift,
    ConceptShift,
    CovariateShift,
    Dirichlet,
    FeatureNoise,
    LabelsPerParty,
    Quantity,
    Skew,
)
from .synthetic import synthetic
from .tables import from_csv, from_frame, from_frames, from_parquet
from .torch_datasets import from_torch
from .vertical import Columns, Vertical, split_for_transfer

ALL: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "iris": iris,
    "breast_cancer": breast_cancer,
    "wine": wine,
    "synthetic": synthetic,
    "gaussian_blobs": gaussian_blobs,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "heart_disease": heart_disease,
    "adult": adult,
    "shakespeare": shakespeare,
}

__all__ = [
    "ALL",
    "IID",
    "SKEWS",
    "ByColumn",
    "Columns",
    "ConceptDrift",
    "ConceptShift",
    "CovariateShift",
    "Dataset",
    "Dirichlet",
    "FeatureNoise",
    "Federation",
    "Holdings",
    "LabelsPerParty",
    "Pipeline",
    "Preparation",
    "Quantity",
    "Recipe",
    "Rows",
    "Skew",
    "Vertical",
    "adult",
    "breast_cancer",
    "cifar10",
    "digits",
    "fashion_mnist",
    "from_arrays",
    "from_csv",
    "from_frame",
    "from_frames",
    "from_huggingface",
    "from_parquet",
    "from_parquet_files",
    "from_torch",
    "gaussian_blobs",
    "heart_disease",
    "iris",
    "mnist",
    "pad",
    "shakespeare",
    "split_for_transfer",
    "synthetic",
    "wine",
]
