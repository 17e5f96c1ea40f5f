"""Where the workers of a simulation run (`bifl.engine.worker.Workers`), a module for each kind; `transfer` carries a run there."""
