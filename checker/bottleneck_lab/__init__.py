"""Hunt GPU performance bottlenecks, and judge the fix."""
