"""An experiment: its settings, what they may be, and what they stand for."""
