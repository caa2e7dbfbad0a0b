"""wellfed.converters: repack a dataset once into shards that read fast."""
