"""Parts of tables and sentences."""
