"""The steps of a run on many machines: Dask starts the work there and sees who lives; the plan and the record stay."""
