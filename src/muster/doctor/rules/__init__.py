"""Rules of the doctor, one topic a module: evidence in, findings out."""
