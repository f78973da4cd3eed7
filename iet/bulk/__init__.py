"""Audits of millions of documents: Arrow batches (`arrow`), files (`files`), Ray Data and datatrove."""
