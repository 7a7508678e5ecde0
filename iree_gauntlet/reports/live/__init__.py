"""What a person sees while work is under way."""
