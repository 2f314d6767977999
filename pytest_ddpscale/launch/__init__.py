"""Starting ranks and watching over them, from the pytest process, which never imports torch."""
