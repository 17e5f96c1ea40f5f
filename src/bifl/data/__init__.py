"""Real data: where it comes from (`datasets`) and how it is dealt out to clients (`partition`)."""
