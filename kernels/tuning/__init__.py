"""Tuning tables, a file a card."""
