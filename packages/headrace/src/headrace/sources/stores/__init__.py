"""Objects of stores (S3, GCS, Azure, HTTP): read in ranges, many at a time, and kept in the node's cache."""
