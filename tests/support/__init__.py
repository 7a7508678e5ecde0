"""What several tests share: small projects, servers with faults, synthetic records, fake tools."""
