<?php
// Finds the library's classes and those of its tests, as Composer's file of this name would.
spl_autoload_register(function (string $class): void {
    foreach (['PhpAmqpLib\\Tests\\' => '/../tests/', 'PhpAmqpLib\\' => '/../PhpAmqpLib/'] as $prefix => $directory) {
        $file = __DIR__ . $directory . str_replace('\\', '/', substr($class, strlen($prefix))) . '.php';
        if (str_starts_with($class, $prefix) && is_file($file)) {
            require $file;
            return;
        }
    }
});
require_once 'phpseclib/autoload.php';
require_once __DIR__ . '/Httpful.php';
