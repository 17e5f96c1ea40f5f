"""What leaves a run: the trained model as a file."""
