"""Plan, steps, scheduler, process supervision, journal."""
