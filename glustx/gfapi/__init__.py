"""The client API: volumes and files, asynchronous first, with blocking twins and the `glfs_*` names."""
