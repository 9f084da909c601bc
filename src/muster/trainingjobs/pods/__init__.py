"""The pods and slots of a job."""
