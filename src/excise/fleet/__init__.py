"""Many machines at once: their evidence verified over an executor, and what fleets ask of it."""
