"""Goldens: judged, confirmed, proposed."""
