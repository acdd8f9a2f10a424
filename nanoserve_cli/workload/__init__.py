"""Traffic for the engine: recorded traces by content or by key, synthetic requests, and fitting to a limit.

errors      TraceError, one line for a person; RowError, one reason for a count
exact       decimal and calendar text to integer nanoseconds
fields      the fields of one record: tokens and stamps, or a RowError
formats     one function and one registry entry a trace format
source      a file as text lines, whatever it was stored as
sniff       which container and which columns those lines have
readers     read_trace: all of the above, in columns
resolve     a trace by key or path
synthetic   lengths and arrivals drawn from a seed
limits      which requests a maximum length admits
"""
