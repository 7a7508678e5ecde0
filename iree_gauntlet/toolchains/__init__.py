"""IREE toolchains: finding, identifying and installing them, and their supported flags and devices."""
