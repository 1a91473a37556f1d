<?php
namespace Httpful;

/** The few calls that the tests make of the library of this name. */
final class Request
{
    private ?string $user = null;

    private function __construct(private string $method, private string $url, private ?string $body)
    {
    }

    public static function post(string $url, ?string $body = null, ?string $type = null): self
    {
        return new self('POST', $url, $body);
    }

    public static function delete(string $url): self
    {
        return new self('DELETE', $url, null);
    }

    public static function put(string $url, ?string $body = null, ?string $type = null): self
    {
        return new self('PUT', $url, $body);
    }

    public function basicAuth(string $user, string $password): self
    {
        $this->user = "$user:$password";
        return $this;
    }

    public function whenError(callable $do): self
    {
        return $this;
    }

    public function withoutStrictSSL(): self
    {
        return $this;
    }

    public function timeout(int $seconds): self
    {
        return $this;
    }

    public function expectsJson(): self
    {
        return $this;
    }

    public function send(): object
    {
        $curl = curl_init($this->url);
        curl_setopt_array($curl, [CURLOPT_CUSTOMREQUEST => $this->method, CURLOPT_RETURNTRANSFER => true,
            CURLOPT_POSTFIELDS => $this->body ?? '', CURLOPT_USERPWD => $this->user, CURLOPT_SSL_VERIFYPEER => false, CURLOPT_SSL_VERIFYHOST => 0, CURLOPT_HTTPHEADER => ['Content-Type: application/json']]);
        curl_exec($curl);
        return (object) ['code' => curl_getinfo($curl, CURLINFO_RESPONSE_CODE)];
    }
}
