/*
 * Keeps libraries loaded (LD_PRELOAD). What a driver's variables point to when it is unloaded would
 * be taken for a leak, by nobody's name; what nothing points to is one still.
 */
int dlclose(void *handle);

int dlclose(void *handle) {
    (void)handle;
    return 0;
}
