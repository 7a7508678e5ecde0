"""Reports of a sweep: tables, pictures, CSV, records of the PyTorch OSS benchmark database."""
