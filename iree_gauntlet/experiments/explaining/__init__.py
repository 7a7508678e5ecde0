"""The explanation of a failure: repeat the failure, locate its cause, extract that part and bundle it."""
