"""Instructions of one call of a model: how they are counted, and what two counts say."""
