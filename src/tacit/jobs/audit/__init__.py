"""Attacks on a run before its model is handed out: `tacit.audit.membership`, `invert`, `release`, …"""
