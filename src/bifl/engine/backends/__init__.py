"""Where the workers of a simulation run (`bifl.engine.worker.Workers`): one module for each kind."""
