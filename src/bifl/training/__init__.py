"""What a client does with its own images: local steps, evaluation."""
