"""The machine that is measured on: processors, GPUs, what disturbs a benchmark."""
