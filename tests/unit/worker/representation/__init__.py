"""Tests of representations: graphs, tokenizers and raw rows."""
