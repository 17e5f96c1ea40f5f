"""Where the workers of a simulation run (`simulate(backend=)`), a module for each kind; `transfer` carries a run there."""
