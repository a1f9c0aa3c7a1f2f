"""The texts of files, data sets and tasks: records, then the text of each, then token ids."""
