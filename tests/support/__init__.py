"""What several tests share: small projects, servers with faults, records that were made up, fake tools."""
