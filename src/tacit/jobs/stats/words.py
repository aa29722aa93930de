"""The words after `tacit stats`: the module of this package whose VERBS has each, and what it does."""

from __future__ import annotations

HOMES: dict[str, tuple[str, str]] = {
    "describe": ("describe_query", "describe columns (Table 1), with tests between groups"),
    "quantile": ("describe_query", "quantiles of a column"),
    "histogram": ("describe_query", "counts of a column in equal bins of a declared range"),
    "crosstab": ("describe_query", "counts by two columns, with a χ² test"),
    "correlation": ("describe_query", "correlations of numeric columns"),
    "mann-whitney": ("describe_query", "a rank test between two groups"),
    "heavy-hitters": ("describe_query", "frequent values of a column with many levels"),
    "glm": ("model_query", "a regression with inference: linear, logistic, Poisson, …"),
    "km": ("model_query", "Kaplan–Meier curves by group"),
    "logrank": ("model_query", "the log-rank test between groups"),
    "cox": ("model_query", "a Cox proportional hazards model"),
}
