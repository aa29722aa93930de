"""Differential privacy: mechanisms, composition, calibration."""
