"""Pages of the documentation that are written from declarations, and the site's navigation; see mkdocs.yml."""
