"""The steps of the job `archive`: into a folder by the workers' own files, behind a URL by Spark's writer."""
