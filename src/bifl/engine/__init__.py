"""Where algorithms run: the simulator (`simulate`), and the plain loop that says the same in one page (`loop`)."""
