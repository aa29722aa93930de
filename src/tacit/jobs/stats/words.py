"""The words after `tacit stats`: the module of this package whose VERBS has each, and what it does."""

from __future__ import annotations

HOMES: dict[str, tuple[str, str]] = {
    "describe": ("describe_query", "describe columns (Table 1), with tests between groups"),
    "quantile": ("describe_query", "quantiles of a column"),
    "histogram": ("describe_query", "counts of a column in equal bins of a declared range"),
    "crosstab": ("describe_query", "counts by two columns, with a χ² test"),
    "correlation": ("compare_query", "correlations of numeric columns"),
    "ttest": ("compare_query", "Welch's t test between two groups"),
    "mann-whitney": ("compare_query", "a rank test between two groups"),
    "heavy-hitters": ("describe_query", "frequent values of a column with many levels"),
    "glm": ("model_query", "a regression with inference: linear, logistic, Poisson, …"),
    "gee": ("site_query", "a regression whose rows are related inside a site (GEE)"),
    "mixed": ("site_query", "a regression with a random intercept by site"),
    "meta": ("site_query", "a meta-analysis of the sites' own regressions"),
    "km": ("survival_query", "Kaplan–Meier curves by group"),
    "nelson-aalen": ("survival_query", "cumulative hazards by group"),
    "aalen-johansen": ("survival_query", "cumulative incidence with competing risks"),
    "logrank": ("survival_query", "the log-rank test between groups"),
    "woe": ("woe_query", "bins of columns with weight of evidence and information value (scorecards)"),
    "cox": ("model_query", "a Cox proportional hazards model"),
}
