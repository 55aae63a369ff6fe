"""The laboratory: the experiments of the documents as tasks, recipes, runs and reports."""
